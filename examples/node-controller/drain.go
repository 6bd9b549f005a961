package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// drain evicts what has to leave (5.2), as the Node's set and the pods themselves allow (5.3), and says what is in the
// way (5.4). Whether nothing is left.
func (c *controller) drain(ctx context.Context, node *corev1.Node) (bool, error) {
	set, err := c.read(ctx, "NodeSet", node.Labels["kube-node.io/nodeset"])
	if err != nil {
		return false, err
	}
	began, err := time.Parse(time.RFC3339, node.Annotations[drainStarted])
	if err != nil {
		began = node.DeletionTimestamp.Time
	}
	timeout := duration(set, "spec", "drain", "timeout")
	isOver := timeout > 0 && time.Since(began) > timeout
	// Not from a cache: a pod may have been bound a moment before the cordon.
	var pods corev1.PodList
	if err := c.direct.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
		return false, err
	}
	pods.Items = slices.DeleteFunc(pods.Items, stays)
	var blocked []string
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		obstacle, err := obstacle(set, &pod), error(nil)
		switch {
		case isOver:
			obstacle = ""
			grace := min(30, ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30))
			err = c.Delete(ctx, &pod, client.GracePeriodSeconds(grace))
		case obstacle == "":
			err = c.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{})
			if apierrors.IsTooManyRequests(err) {
				obstacle, err = err.Error(), nil
			}
		}
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
		if obstacle != "" {
			blocked = append(blocked, fmt.Sprintf("pod %s/%s: %s", pod.Namespace, pod.Name, obstacle))
		}
	}
	if len(blocked) > 0 {
		return false, c.say(ctx, node, "kube-node.io/Drained", corev1.ConditionFalse, "DrainBlocked", strings.Join(blocked, "; "))
	}
	return len(pods.Items) == 0, nil
}

// stays says of a pod that it holds no drain up.
func stays(pod corev1.Pod) bool {
	owner := metav1.GetControllerOf(&pod)
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	isFinished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return isMirror || isFinished || owner != nil && owner.Kind == "DaemonSet"
}

// obstacle is why a pod is not to be evicted; empty where it may be.
func obstacle(set *unstructured.Unstructured, pod *corev1.Pod) string {
	hasData := slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool { return volume.EmptyDir != nil })
	losesData, isSaid, _ := unstructured.NestedBool(set.Object, "spec", "drain", "deleteEmptyDirData")
	optsOut, hasOpinion := pod.Annotations["kube-node.io/do-not-evict"]
	switch {
	case hasOpinion && optsOut != "false":
		return "it does not want to be evicted"
	case hasData && isSaid && !losesData:
		return "it has an emptyDir volume"
	case metav1.GetControllerOf(pod) == nil && nested(set, "spec", "drain", "unmanagedPods") == "Keep":
		return "no controller would make it again"
	}
	return ""
}
