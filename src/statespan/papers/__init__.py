"""The workshop: everything that exists because of the two papers. The library never imports it."""
