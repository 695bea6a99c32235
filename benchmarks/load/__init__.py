"""Load generators. Each runs in processes of its own; what they send is built beforehand."""
