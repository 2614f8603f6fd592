//go:build extended

package main

import "github.com/flyteorg/flyte/flyteidl/gen/pb-go/flyteidl/core"

// GetExtendedResources: the schema has them since flyteidl 1.10.
func (o overrides) GetExtendedResources() *core.ExtendedResources {
	if len(o.of.ExtendedResources) == 0 {
		return nil
	}
	resources := &core.ExtendedResources{}
	if err := fromJSON(o.of.ExtendedResources, resources); err != nil {
		panic(err)
	}
	return resources
}
