"""Claims that courses make about attention and recurrence, each as a short module that can be run and changed."""
