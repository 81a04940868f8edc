"""One real commit through the whole line, each stop checked."""
