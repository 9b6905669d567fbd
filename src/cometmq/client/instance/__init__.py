"""The clients of one id: connections, routes, heartbeats and servers' requests."""
