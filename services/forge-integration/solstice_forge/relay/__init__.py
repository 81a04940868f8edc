"""From the inbox to the broker, with confirms."""
