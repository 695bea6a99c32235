"""What does not depend on a work: declaring, running, judging and telling figures."""
