"""What clients send, as strict models."""
