"""The references by theme: attention, transformers, images, recurrence, text and learning."""
