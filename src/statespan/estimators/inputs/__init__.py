"""What people have their series in, read into arrays, checked, and standardised."""
