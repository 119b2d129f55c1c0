"""muster-bench serve: runs in a browser, over HTTP, and for Prometheus."""
