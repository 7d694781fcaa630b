package localfargate

import (
	"net/http"
	"regexp"
	"slices"
)

// signed finds whose key signed a request, and for which region.
var signed = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/,]+)/[0-9]+/([a-z0-9-]+)/ecs/aws4_request`)

// server is the one that a request is for: ECS has one endpoint in each region, and tells
// accounts apart by who signed.
func (s *Server) server(r *http.Request) (*Server, error) {
	if s.opts.AccountOf == nil {
		return s, nil
	}
	by := signed.FindStringSubmatch(r.Header.Get("Authorization"))
	if by == nil {
		return nil, clientError("MissingAuthenticationTokenException", "Missing Authentication Token")
	}
	account, err := s.opts.AccountOf(r.Context(), by[1])
	if err != nil {
		s.log.Warn("ask whose a key is", "err", err)
		return nil, clientError("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	for _, peer := range slices.Concat([]*Server{s}, s.opts.Peers) {
		if peer.opts.Account == account && peer.opts.Region == by[2] {
			return peer, nil
		}
	}
	return nil, clientError("AccessDeniedException", "There is no local Fargate of account %s in %s.", account, by[2])
}
