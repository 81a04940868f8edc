"""Makes spans of what the services did, and sends them to an OpenTelemetry collector."""
