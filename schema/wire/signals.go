package wire

// StaleHealth is how long after a report its conditions are known.
const StaleHealth = 3 * HealthInterval
