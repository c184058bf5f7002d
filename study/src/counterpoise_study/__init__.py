"""Every table and figure of the paper, by one command: studies, the grid of their runs, the store, the report.

studies, scales, requests    what is compared, as data
cells                        from requests to tasks, and what was chosen
store, manifest              what is finished, for any number of processes
work, grid, cluster          one task, one after another, on Ray
record                       what is kept of a cell
summary, tables, figures     over seeds, and beside the published numbers
"""

__version__ = "0.1.0"
