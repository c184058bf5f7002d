"""Tables, figures and the page, all drawn from scores alone."""
