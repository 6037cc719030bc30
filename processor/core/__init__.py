"""What happens to a group: decide, apply, replay. Pure, standard library only."""
