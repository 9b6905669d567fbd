"""The client: producers and consumers for CometMQ's broker and Apache RocketMQ's."""
