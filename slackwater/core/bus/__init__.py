"""The bus: messages over NATS."""
