"""When steps are steady, and how sure their mean is. The same for every workload. Pure, but for
`earlier_windows`, which keeps what it has seen in a file."""
