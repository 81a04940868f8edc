"""Which runs get which jobs and steps: `on`, `if` and manual inputs. Pure."""
