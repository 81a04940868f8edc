"""What the commands of all packages share: flags, errors, API client, following runs."""
