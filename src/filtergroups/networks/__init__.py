"""Networks of the paper: tables and loops, lifted like any other."""
