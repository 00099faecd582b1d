"""Softmax attention, made of parts."""
