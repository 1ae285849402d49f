"""When steps are steady, and how sure their mean is. Pure; the same for every workload."""
