package recovery

// OutcomeCount counts how the repairs of one kind of fault ended.
type OutcomeCount struct {
	Checker  string `json:"checker"`
	Reason   string `json:"reason"`
	Code     int    `json:"code,omitempty"`
	SKU      string `json:"sku"`
	Rung     Rung   `json:"rung"`
	Cured    int    `json:"cured"`
	NotCured int    `json:"not_cured"`
	Failed   int    `json:"failed"`
	Unknown  int    `json:"unknown"`
}
