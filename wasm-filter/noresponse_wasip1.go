//go:build (!compare && !sdk) || plugins

package main

const compares = false
