"""The routes, a file for each group; each file's `router(context)` makes them."""
