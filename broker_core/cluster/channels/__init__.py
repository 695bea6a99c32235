"""`Peer.Talk`: what plugins of different nodes say to each other."""
