"""What the commands of all packages share: flags, errors, the API client, following a run."""
