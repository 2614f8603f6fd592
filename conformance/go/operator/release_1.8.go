//go:build operator1.8

package main

import (
	"context"
	"errors"
	"sort"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	webhook "github.com/kubeflow/training-operator/pkg/webhooks/pytorch"
)

// The webhook refuses the job.
const onlyLogsErrors = false

func validate(job *kubeflowv1.PyTorchJob) ([]string, []string) {
	warnings, err := (&webhook.Webhook{}).ValidateCreate(context.Background(), job)
	var all utilerrors.Aggregate
	found := []string{}
	switch {
	case errors.As(err, &all):
		for _, each := range all.Errors() {
			found = append(found, each.Error())
		}
	case err != nil:
		found = append(found, err.Error())
	}
	sort.Strings(found) // they come in the order of a map
	return found, warnings
}
