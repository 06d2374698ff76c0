"""What the real loop needs of a GPU beyond torch: host memory, copies, ends of steps."""
