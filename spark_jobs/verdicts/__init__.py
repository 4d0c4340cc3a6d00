"""The verdicts on groups of messages: each rule once, from summaries to counts and findings."""
