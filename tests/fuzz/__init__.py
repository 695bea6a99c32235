"""Coverage-guided fuzzing with atheris, and the inputs that it found."""
