"""The playground: a page in the browser, and the small JSON interface behind it."""
