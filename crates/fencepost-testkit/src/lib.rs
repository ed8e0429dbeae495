//! Starts real servers on free ports with temporary folders, and breaks them on purpose.
