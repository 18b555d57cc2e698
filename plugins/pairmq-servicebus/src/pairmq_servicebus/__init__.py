"""Azure Service Bus for PairMQ: the transport of `sb://` URLs, and a local server of its protocol."""
