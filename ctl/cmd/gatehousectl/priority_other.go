//go:build !linux

package main

// lowerPriority does nothing: only Linux's priorities are supported.
func lowerPriority() {}
