"""What a page says about runs: charts of metrics, clients, cosines, surfaces and times; tables."""
