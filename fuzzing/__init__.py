"""Damaged and hostile files for every reader: `python -m fuzzing [READER ...] [--seconds 60]`.

A reader may give a result, or its documented error with a message. Everything else is a finding: another exception, an
abort inside a library, a file that takes seconds or hundreds of megabytes. Findings are kept in `fuzzing/corpus`, and
the tests read each of them again.
"""
