//go:build operator1.5 || operator1.7

package main

import "sort"

// everyError that can come first: these releases look at the replica types in the order of a map and stop at one.
func everyError(validate func() error) []string {
	seen := map[string]bool{}
	for try := 0; try < 64; try++ {
		if err := validate(); err != nil {
			seen[err.Error()] = true
		}
	}
	found := []string{}
	for each := range seen {
		found = append(found, each)
	}
	sort.Strings(found)
	return found
}
