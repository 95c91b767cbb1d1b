"""Settings of a run: what tells runs apart, what is secret, what may change when a run goes on."""
