"""Many runs as one table: which they are, who works on them, what came of them."""
