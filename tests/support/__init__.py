"""Code that tests share: golden stores and the like. Nothing here is a test."""
