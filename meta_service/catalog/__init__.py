"""The replicated state machine, pure: state and command in, writes and result out."""
