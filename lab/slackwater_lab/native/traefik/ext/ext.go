// Package ext stands in for Traefik's own, empty one: a module nested in its repository, which no registry has.
package ext

// HTTP extends nothing.
type HTTP struct{}

// Router extends nothing.
type Router struct{}
