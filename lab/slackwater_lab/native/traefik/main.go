// Serves HTTP through Traefik's own `leasttime` balancer: LISTEN URL...
//
// The whole of Traefik is not in its Go module (the dashboard's files are missing), its packages are. What stands
// between balancer and servers is Go's reverse proxy, with as many idle connections as Traefik keeps by default.
package main

import (
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"

	"github.com/traefik/traefik/v3/pkg/server/service/loadbalancer/leasttime"
)

const idlePerServer = 200

func main() {
	if len(os.Args) < 3 {
		log.Fatal("expected the address to listen on and the URL of each server")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = idlePerServer
	transport.MaxIdleConns = 0
	balancer := leasttime.New(nil, false)
	for _, server := range os.Args[2:] {
		target, err := url.Parse(server)
		if err != nil || target.Host == "" {
			log.Fatalf("%s: expected a URL such as http://127.0.0.1:80", server)
		}
		proxy := httputil.NewSingleHostReverseProxy(target)
		proxy.Transport = transport
		balancer.Add(server, proxy, nil, false)
	}
	log.Fatal(http.ListenAndServe(os.Args[1], balancer))
}
