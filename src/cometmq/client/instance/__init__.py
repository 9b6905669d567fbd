"""The clients of one id: connections, routes, heartbeats and what servers ask."""
