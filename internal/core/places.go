package core

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Place is where ECS is asked: an account in a Region.
type Place struct {
	Account, Region string
}

func (p Place) String() string { return "account " + p.Account + " in " + p.Region }

// Spoke is another account, or another Region, in which sandboxes run. The installation
// asks its ECS under a role there.
type Spoke struct {
	// Role is the ARN of the role to assume; it says which account the spoke is.
	Role       string `json:"role"`
	Region     string `json:"region"`
	ExternalID string `json:"externalId"` // that the role's trust asks for
	// Clusters are the names of the clusters there that the installation may use.
	Clusters []string `json:"clusters"`
}

// Place is where the spoke's ECS is.
func (s Spoke) Place() Place { return Place{Account: strings.Split(s.Role, ":")[4], Region: s.Region} }

// ClusterARNs are the ARNs of the spoke's clusters.
func (s Spoke) ClusterARNs() []string {
	parts := strings.Split(s.Role, ":")
	out := make([]string, len(s.Clusters))
	for i, name := range s.Clusters {
		out[i] = strings.Join([]string{"arn", parts[1], "ecs", s.Region, parts[4], "cluster/" + name}, ":")
	}
	return out
}

// Places are where an installation's sandboxes may run: at home, and in its spokes.
type Places struct {
	// Home is the ARN of the installation's own cluster.
	Home   string  `json:"home"`
	Spokes []Spoke `json:"spokes"`
}

// ErrNoSpoke says that a cluster is neither in the installation's own account and Region
// nor one of a spoke. It is a fault of the configuration, and says nothing of a task.
var ErrNoSpoke = errors.New("no spoke")

var (
	spokeRole    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$`)
	spokeRegion  = regexp.MustCompile(`^[a-z]{2,}(-[a-z]+)+-[0-9]$`)
	spokeID      = regexp.MustCompile(`^[A-Za-z0-9+=,.@:/_-]{2,128}$`)
	clusterName  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)
	clusterARN   = regexp.MustCompile(`^arn:aws[a-z-]*:ecs:([a-z0-9-]+):([0-9]{12}):cluster/[A-Za-z0-9_-]{1,255}$`)
	errNoCluster = errors.New("want the ARN of a cluster")
)

// Check says what is wrong with a spoke.
func (s Spoke) Check() error {
	switch {
	case !spokeRole.MatchString(s.Role):
		return fmt.Errorf("role: want the ARN of a role, got %.80q", s.Role)
	case !spokeRegion.MatchString(s.Region):
		return fmt.Errorf("region: want a Region as eu-west-1, got %.40q", s.Region)
	case !spokeID.MatchString(s.ExternalID):
		return fmt.Errorf("externalId: want 2 to 128 letters, digits or +=,.@:/_-, got %d bytes", len(s.ExternalID))
	case len(s.Clusters) == 0:
		return errors.New("clusters: want the name of one at least")
	}
	for _, name := range s.Clusters {
		if !clusterName.MatchString(name) {
			return fmt.Errorf("clusters: want names, no ARNs, got %.80q", name)
		}
	}
	return nil
}

// CheckSpokes says what is wrong with the spokes of one installation.
func CheckSpokes(spokes []Spoke) error {
	seen := map[Place]bool{}
	for i, s := range spokes {
		if err := s.Check(); err != nil {
			return fmt.Errorf("spoke %d: %w", i+1, err)
		}
		if seen[s.Place()] {
			return fmt.Errorf("spoke %d: %s has one already", i+1, s.Place())
		}
		seen[s.Place()] = true
	}
	return nil
}

// ReadPlaces reads {"home":"arn:…:cluster/…","spokes":[…]}, as the stack writes it.
func ReadPlaces(text string) (Places, error) {
	var p Places
	if err := DecodeStrict([]byte(text), &p); err != nil {
		return Places{}, fmt.Errorf("read places: %w", err)
	}
	home, err := placeOf(p.Home)
	if err != nil {
		return Places{}, fmt.Errorf("read places: home: %w, got %.80q", err, p.Home)
	}
	if err := CheckSpokes(p.Spokes); err != nil {
		return Places{}, fmt.Errorf("read places: %w", err)
	}
	for i, s := range p.Spokes {
		if s.Place() == home {
			return Places{}, fmt.Errorf("read places: spoke %d: %s is the installation's own", i+1, home)
		}
	}
	return p, nil
}

func placeOf(cluster string) (Place, error) {
	parts := clusterARN.FindStringSubmatch(cluster)
	if parts == nil {
		return Place{}, errNoCluster
	}
	return Place{Region: parts[1], Account: parts[2]}, nil
}

// Spoke returns the spoke of a cluster, and nil for one at home: every cluster of the
// installation's own account and Region, and one that is named without either. For any
// other the error is [ErrNoSpoke]. Without a home every cluster is at home.
func (p Places) Spoke(cluster string) (*Spoke, error) {
	if p.Home == "" || !strings.HasPrefix(cluster, "arn:") {
		return nil, nil
	}
	at, err := placeOf(cluster)
	if err != nil {
		return nil, fmt.Errorf("%w for cluster %.80q: %w", ErrNoSpoke, cluster, err)
	}
	if home, err := placeOf(p.Home); err != nil || at == home {
		return nil, err
	}
	for i, s := range p.Spokes {
		if s.Place() == at && slices.Contains(s.ClusterARNs(), cluster) {
			return &p.Spokes[i], nil
		}
	}
	return nil, fmt.Errorf("%w for cluster %s: %s has none that lists it", ErrNoSpoke, cluster, at)
}

// Abroad are the ARNs of all clusters of spokes, in the order of the spokes.
func (p Places) Abroad() []string {
	var out []string
	for _, s := range p.Spokes {
		out = append(out, s.ClusterARNs()...)
	}
	return out
}
