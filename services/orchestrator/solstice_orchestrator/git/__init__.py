"""git, as far as planning and executors need it: what is fetched, how, and under which policy."""
