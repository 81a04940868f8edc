"""Takes the messages of a route, from one queue or several in weighted order."""
